import importlib.metadata, importlib.util, json, os, platform, sys

out = {"interpreter": sys.executable or "", "python": platform.python_version(), "machine": platform.machine(),
       "sites": [p for p in sys.path if p], "torch": "", "torch_version_py": "", "packages": {}}
for d in importlib.metadata.distributions():
    try:
        name = d.metadata["Name"]
        if name:
            out["packages"].setdefault(name, d.version)
    except Exception:
        pass  # torn metadata
try:
    # Looking a package up does not import it.
    spec = importlib.util.find_spec("torch")
    if spec and spec.origin:
        out["torch"] = os.path.dirname(spec.origin)
        with open(os.path.join(out["torch"], "version.py"), errors="replace") as f:
            out["torch_version_py"] = f.read(65536)
except Exception:
    pass  # remains of an uninstall
print("\nsparkrun-image:" + json.dumps(out), flush=True)
