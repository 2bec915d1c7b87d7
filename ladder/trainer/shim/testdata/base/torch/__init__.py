__version__ = "2.9.0"

bfloat16 = "torch.bfloat16"
