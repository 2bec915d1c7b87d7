class Model:
    pass


class FastLanguageModel:
    @staticmethod
    def from_pretrained(model_name="some/model", max_seq_length=2048, dtype=None, load_in_4bit=True, full_finetuning=False, **kwargs):
        model = Model()
        model.name, model.max_seq_length, model.dtype, model.load_in_4bit = model_name, max_seq_length, dtype, load_in_4bit
        return model, None

    @staticmethod
    def get_peft_model(model, r=16, use_gradient_checkpointing=True):
        model.checkpointing = use_gradient_checkpointing
        return model
