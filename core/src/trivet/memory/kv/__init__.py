"""The KV cache: its tensors, the pool of its blocks, and what finds blocks again by content."""
