__version__ = '2.6.0+cu124'
cuda: Optional[str] = '12.4'
hip: Optional[str] = None
