# SPDX-License-Identifier: Apache-2.0
"""The small language model of the demo: made here from public text, trained in minutes, run as a few
packages.

model.py is the model; corpus.py, train.py and evaluate.py made weights.safetensors, as card.md tells;
export.py compiles the packages that the C++ workers run, and generate.py is the reference of how they run
them. shapes.py has it in other sizes, with weights that random_weights.py makes up. Everything but this file
and shapes.py needs torch.
"""
