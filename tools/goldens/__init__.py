# SPDX-License-Identifier: Apache-2.0
"""Tiny random models, their results in transformers, and the same models as files on disk."""
