# SPDX-License-Identifier: Apache-2.0
"""The small language model of the demo. It was trained on public text in minutes, and runs as a few packages.

model.py is the model. corpus.py, train.py and evaluate.py made weights.safetensors; card.md describes it.
export.py compiles the packages that the C++ workers run; generate.py is the reference for running them.
shapes.py has other sizes of the model, with weights from random_weights.py. All but this file and shapes.py
needs torch.
"""
