"""What vendor packages may share when they write kernels in a kernel language; all optional."""
