"""Train a small GPT-2 at a rate that is far too high; Watch says so before the loss does."""

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

import orbitlens as ol


def main(folder="out/watch_gpt2", steps=100, rate=1.0):
    torch.manual_seed(0)
    rows = [torch.arange(64).mul(k % 7 + 1).add(k).remainder(61) for k in range(2048)]
    data = [{"input_ids": row, "labels": row} for row in rows]  # counting, by 1 to 7, modulo 61
    sizes = {"n_embd": 64, "n_layer": 4, "n_head": 4, "bos_token_id": 0, "eos_token_id": 0}
    model = GPT2LMHeadModel(GPT2Config(vocab_size=61, n_positions=64, **sizes))
    watch = ol.Watch(every=5, tokens_every=5, path=folder)
    args = TrainingArguments(folder, max_steps=steps, learning_rate=rate, warmup_steps=steps)
    Trainer(model, args, train_dataset=data, callbacks=[watch.callback()]).train()
    return ol.watched(folder)


if __name__ == "__main__":
    print(main().summary())
    print("orbitlens watch out/watch_gpt2 -o watch.html draws the page.")
