# SPDX-License-Identifier: Apache-2.0
"""The process group of torch.distributed on headrace.Comm. It imports torch, so `import headrace` does not
import it."""
