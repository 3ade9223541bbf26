"""A small causal language model trained by Hugging Face's Trainer, as one would start it with torchrun.

It knows nothing of DDPJob. The model begins at random and learns to count; `examples/hf-guide.yaml` gives it the
settings of Hugging Face's guide to DDP, without a change here. Needs the package transformers, with accelerate.
"""

import argparse

import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

VOCABULARY, LENGTH = 96, 32


class Counting(torch.utils.data.Dataset):
    """Sequences that count upwards, each from another number and in other steps."""

    def __len__(self) -> int:
        return 4096

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        numbers = (index + torch.arange(LENGTH) * (1 + index % 7)) % VOCABULARY
        return {"input_ids": numbers, "labels": numbers}


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=40, help="optimizer steps")
    parser.add_argument("--save-steps", type=int, default=0, help="0: no checkpoint")
    parser.add_argument("--output", default="trainer_output", help="folder of the checkpoints")
    parser.add_argument("--checkpointing", choices=["none", "reentrant", "non-reentrant"], default="none")
    return parser.parse_args()


def main() -> None:
    options = parse()
    torch.manual_seed(0)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=VOCABULARY,
            hidden_size=192,
            intermediate_size=384,
            num_hidden_layers=3,
            num_attention_heads=4,
            num_key_value_heads=4,
            max_position_embeddings=LENGTH,
        )
    )
    arguments = TrainingArguments(
        output_dir=options.output,
        max_steps=options.steps,
        per_device_train_batch_size=4,
        learning_rate=1e-3,
        gradient_checkpointing=options.checkpointing != "none" or None,
        gradient_checkpointing_kwargs=(
            {"use_reentrant": options.checkpointing == "reentrant"}
            if options.checkpointing != "none"
            else None
        ),
        save_strategy="steps" if options.save_steps else "no",
        save_steps=options.save_steps or 500,
        logging_steps=5,
        report_to=[],
        disable_tqdm=True,
    )
    Trainer(model=model, args=arguments, train_dataset=Counting()).train()


if __name__ == "__main__":
    main()
