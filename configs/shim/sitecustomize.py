"""Loads sparkrun's shim into a Python process, then gives way to the sitecustomize
that Python would have found without it.

Everything sparkrun does here is optional to the training: whatever goes wrong is kept
quiet, and the process goes on as if this folder were not on its path.
"""

import os
import sys

_here = os.path.dirname(__file__)
_plan = os.environ.get("SPARKRUN_SHIM_PLAN", "")

try:
    # Another attempt's shim may stand behind this one, where a training starts
    # sparkrun itself; one per process is enough.
    if _plan and "sparkrun_shim" not in sys.modules and os.access(_plan, os.R_OK):
        from sparkrun_shim import hook

        hook.install(_plan)
except Exception:
    pass

try:
    # Submodules are found through the package from here on, so the script sees its own
    # path as it would be without us. Children get it from the environment again.
    sys.path[:] = [p for p in sys.path if p != _here]
    sys.path_importer_cache.pop(_here, None)
    del sys.modules["sitecustomize"]
except Exception:
    pass

# Outside of any try: that there is none, or that it fails, is reported by Python
# exactly as it would have been.
import sitecustomize  # noqa: E402,F401
