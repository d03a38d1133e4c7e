# SPDX-License-Identifier: Apache-2.0
"""Models of a real model's shape with seeded random weights, for measuring."""
