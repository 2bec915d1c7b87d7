__version__ = "1.6.0"

from .accelerator import Accelerator  # noqa: E402,F401
