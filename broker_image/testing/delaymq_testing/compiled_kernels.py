"""Mark of tests that need the compiled kernels."""

import pytest
from delaymq import kernels

NEEDS_KERNELS = pytest.mark.skipif(not kernels.IS_COMPILED, reason=f"compiled kernels: {kernels.ABOUT}")
