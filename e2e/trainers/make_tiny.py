"""Makes what a training needs, on the spot and without a network: a tiny Llama with
random weights, a tokenizer trained on a few lines, and a data set of long rows.

    python make_tiny.py FOLDER     writes FOLDER/model and FOLDER/data/train.jsonl
"""

import json
import os
import random
import sys

WORDS = (
    "the night was long and the machine kept counting while rain fell on the roof "
    "a step is small but a thousand steps make a road and every road begins at the door "
    "she wrote the number down then the heat then the power and waited for morning"
).split()

ROWS = 32
ROW_WORDS = 5000  # about as many tokens: longer than any --max_length of the test


def text_rows(count=ROWS, words=ROW_WORDS):
    rng = random.Random(7)
    return [" ".join(rng.choice(WORDS) for _ in range(words)) for _ in range(count)]


def make_tokenizer():
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.WordLevel(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    special = ["<unk>", "<s>", "</s>", "<pad>"]
    tokenizer.train_from_iterator([" ".join(WORDS)], trainers.WordLevelTrainer(special_tokens=special))
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="<unk>", bos_token="<s>", eos_token="</s>", pad_token="<pad>"
    )


def make_model(tokenizer):
    """Eager attention keeps one float per pair of tokens, so that a tiny model needs
    real memory at a real length: 64 MiB a row, head and layer at 4096 tokens."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(7)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(tokenizer),
            hidden_size=16,
            intermediate_size=32,
            num_hidden_layers=1,
            num_attention_heads=4,
            num_key_value_heads=4,
            max_position_embeddings=8192,
            bos_token_id=tokenizer.bos_token_id,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
            attn_implementation="eager",
        )
    )


def main(folder):
    tokenizer = make_tokenizer()
    make_model(tokenizer).save_pretrained(os.path.join(folder, "model"))
    tokenizer.save_pretrained(os.path.join(folder, "model"))
    os.makedirs(os.path.join(folder, "data"), exist_ok=True)
    with open(os.path.join(folder, "data", "train.jsonl"), "w") as f:
        for text in text_rows():
            f.write(json.dumps({"text": text}) + "\n")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(sys.argv[1])
