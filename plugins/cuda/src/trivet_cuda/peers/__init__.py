"""Other projects' kernels as implementations that run only where an order list names them.

One module a project: ``torch_own`` (PyTorch's own functions), ``inductor`` (the reference as
PyTorch compiles it), ``vllm``, ``liger``, ``flaggems``, ``flashinfer``, ``quack``. Each says in
which domain the kernel means what the operator means: which rounding order, which
offset of the weight, which layout. Whether a project is installed is asked without importing it;
it is imported when a site that names it is bound, or at the first call.

``prefer={"rms_norm": ["cuda/vllm"]}`` compares a kernel inside an engine; the benchmarks compare
all of them side by side.
"""

from __future__ import annotations
