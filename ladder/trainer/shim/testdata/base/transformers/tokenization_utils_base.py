class PreTrainedTokenizerBase:
    model_max_length = 1 << 60

    def __call__(self, text, text_pair=None, padding=False, truncation=None, max_length=None):
        return self.encode_plus(text, truncation=truncation, max_length=max_length)

    def encode_plus(self, text, truncation=None, max_length=None):
        words = text.split()
        return words[:max_length] if truncation and max_length is not None else words
