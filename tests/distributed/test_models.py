# SPDX-License-Identifier: Apache-2.0
"""Models on several processes compute the bits of one: dense, mixture of experts, latent attention and hybrid ones."""

import pytest

from launch import BIN_DIR, Job, needs_mpirun

GOLDENS = ("llama", "gemma3", "qwen3-moe", "deepseek-v3", "qwen3-next", "nemotron-h")


@needs_mpirun
@pytest.mark.parametrize(("tensor", "pipeline"), [(2, 1), (1, 2), (2, 2)])
def test_same_bits(tmp_path, tensor, pipeline):
    with Job(tmp_path, tensor * pipeline, BIN_DIR / "quire_model_ranks", tensor, pipeline, *GOLDENS) as job:
        assert job.wait() == 0, job.log
        assert [job.exit_code(rank) for rank in range(job.size)] == [0] * job.size, job.log
        for golden in GOLDENS:
            assert f"{golden}: same bits" in job.log
