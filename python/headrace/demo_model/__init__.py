# SPDX-License-Identifier: Apache-2.0
"""The small language model of the demo. It was trained on public text in minutes, and runs as a few packages.

model.py is the model. corpus.py, train.py and evaluate.py made weights.safetensors, which card.md describes,
and experts.safetensors for the same model with experts (experts_card.md). split.py and experts.py cut layers
into parts for several ranks.
export.py compiles the packages that the C++ workers run; generate.py is the reference for running them.
shapes.py has other sizes of the model, with weights from random_weights.py. All but this file and shapes.py
needs torch.
"""
