class BitsAndBytesConfig:
    def __init__(self, load_in_4bit=False, **rest):
        self.load_in_4bit = load_in_4bit


class PreTrainedModel:
    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path, *args, quantization_config=None, dtype=None, **kwargs):
        model = cls()
        model.quantised = bool(quantization_config is not None and quantization_config.load_in_4bit)
        model.dtype = str(dtype)
        return model


class AutoModelForCausalLM(PreTrainedModel):
    pass
