__version__ = '1.13.1'
debug = False
cuda = None
git_version = 'unknown'
hip = None
