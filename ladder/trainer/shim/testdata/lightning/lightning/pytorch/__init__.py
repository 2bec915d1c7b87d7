from .trainer.trainer import Trainer  # noqa: F401
