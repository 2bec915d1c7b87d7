from .fingerprint import update_fingerprint  # noqa: F401
