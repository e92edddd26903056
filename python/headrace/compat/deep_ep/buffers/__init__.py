# SPDX-License-Identifier: Apache-2.0
"""deep_ep.buffers."""
