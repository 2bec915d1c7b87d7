from typing import Optional

__version__ = '2.9.0a0+50eac811a6.nv25.09'
debug = False
cuda: Optional[str] = '13.0'
git_version = '50eac811a6'
hip: Optional[str] = None
