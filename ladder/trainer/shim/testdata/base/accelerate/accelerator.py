class Accelerator:
    def __init__(self, device_placement=True, gradient_accumulation_steps=1):
        self.gradient_accumulation_steps = gradient_accumulation_steps
