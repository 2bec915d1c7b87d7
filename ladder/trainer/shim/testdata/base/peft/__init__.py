from .utils.other import prepare_model_for_kbit_training  # noqa: F401
