# SPDX-License-Identifier: Apache-2.0
"""pplx_garden.kernels: dispatch and combine of experts."""
