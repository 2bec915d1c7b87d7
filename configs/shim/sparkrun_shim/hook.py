"""Notices that a library it knows is imported and has its patches applied right after.

This is all that a process without such a library ever loads, so it imports nothing that
Python has not loaded by itself.
"""

import os
import sys

# Seconds that a process waits at most for a disk that does not answer.
MOMENT = 0.25

# The module of a library that defines what is patched, and which of our modules does it
# in a function named after the last word.
WATCHED = {
    "transformers.training_args": "arguments.training_args",
    "transformers.trainer": "arguments.trainer",
    "transformers.modeling_utils": "models.transformers",
    "transformers.tokenization_utils_base": "data.tokenizers",
    "llamafactory.hparams.data_args": "arguments.llama_factory",
    "unsloth": "wrapping.again",
    "unsloth.models.loader": "models.unsloth",
    "unsloth_zoo": "wrapping.again",
    "trl": "wrapping.again",
    "peft.utils.other": "models.peft",
    "datasets.fingerprint": "data.datasets",
    "accelerate.accelerator": "loops.accelerate",
    "torch.utils.data.dataloader": "loops.dataloader",
    "lightning.pytorch.trainer.trainer": "loops.lightning",
    "pytorch_lightning.trainer.trainer": "loops.lightning",
}


def install(plan_path):
    """Registers the hook. Reads nothing: the plan is opened with the first library."""
    if sys.version_info < (3, 8):
        return
    mark_loaded(record_folder(plan_path))
    sys.meta_path.insert(0, Finder(plan_path))
    for name in WATCHED:
        # Something on the path may have imported it before us, with a .pth file.
        if name in sys.modules:
            apply(plan_path, name, sys.modules[name])


def record_folder(plan_path):
    return os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(plan_path))), "shim-out")


def mark_loaded(folder):
    """Leaves one small file for the whole attempt: that some Python came this far. Only the
    first writes it, in a thread, so that no process hangs with our disk."""
    path = os.path.join(folder, "loaded")
    if os.path.exists(path):
        return
    import _thread  # Python 2 names it otherwise

    done = _thread.allocate_lock()
    done.acquire()
    try:
        _thread.start_new_thread(write_mark, (folder, path, done))
    except Exception:
        write_mark(folder, path, done)
    done.acquire(timeout=MOMENT)


def write_mark(folder, path, done):
    try:
        os.makedirs(folder, exist_ok=True)
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
        try:
            os.write(fd, ("%d %s\n" % (os.getpid(), sys.version.split()[0])).encode())
        finally:
            os.close(fd)
    except Exception:
        pass
    finally:
        done.release()


def apply(plan_path, name, module):
    """Applies the patch for one library module. Never raises."""
    try:
        from . import patches

        patches.apply(plan_path, WATCHED[name], name, module)
    except Exception:
        pass


class Finder:
    """A meta path finder that lets the others find the module and only adds to its
    loader what is to happen after the module has run."""

    def __init__(self, plan_path):
        self.plan_path = plan_path

    def find_spec(self, name, path=None, target=None):
        if name not in WATCHED:
            return None
        for finder in list(sys.meta_path):
            find = None if finder is self else getattr(finder, "find_spec", None)
            spec = find(name, path, target) if find else None
            if spec is not None:
                try:
                    follow(spec.loader, lambda module: apply(self.plan_path, name, module))
                except Exception:
                    pass
                return spec
        return None


def follow(loader, after):
    """Makes this one loader object call after(module) when it has run the module. Its
    class stays what it is, so that reading a source or a resource through it works."""
    run = getattr(loader, "exec_module", None)
    if run is None:
        return

    def exec_module(module):
        try:
            del loader.exec_module
        except AttributeError:
            pass
        run(module)
        after(module)

    loader.exec_module = exec_module
