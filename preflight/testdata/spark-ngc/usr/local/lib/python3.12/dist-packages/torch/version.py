__version__ = '2.10.0a0+b558c986e8.nv25.11'
debug = False
cuda: Optional[str] = '13.0'
git_version = 'unknown'
hip: Optional[str] = None
