class PreTrainedModel:
    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path, *args, config=None, **kwargs):
        model = cls()
        model.name, model.loaded_with = pretrained_model_name_or_path, kwargs
        model.is_loaded_in_4bit = bool(kwargs.get("quantization_config")) or bool(kwargs.get("load_in_4bit"))
        return model
