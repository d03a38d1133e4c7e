# SPDX-License-Identifier: Apache-2.0
"""Tiny random models, what transformers says about them, and the same models as files on disk."""
