# SPDX-License-Identifier: Apache-2.0
"""Ranks on several hosts: a slow, lossy network changes no byte, and hosts that are lost are named."""

import os
import signal

import pytest

from launch import LIMIT, needs_mpirun, ranks
from wire import NETWORK, Hosts, what_is_missing

MISSING = what_is_missing()
pytestmark = [needs_mpirun, pytest.mark.skipif(MISSING != "", reason=MISSING)]


@pytest.fixture(name="hosts")
def fixture_hosts():
    with Hosts(2, delay=0.002, loss=0.01) as hosts:
        yield hosts


def on_hosts(hosts: Hosts, folder, mode: str, limit: float = LIMIT):
    """One rank on each host. mpirun is on the first, and starts its daemon on the other as ssh would."""
    agent = folder / "agent"
    hosts.write_agent(agent)
    network = f"{NETWORK}.0/24"
    settings = {"plm_rsh_agent": agent, "btl": "tcp,self", "pml": "ob1", "btl_tcp_if_include": network,
                "oob_tcp_if_include": network, "orte_keep_fqdn_hostnames": "1"}
    flags = [part for name, value in settings.items() for part in ("--mca", name, str(value))]
    return ranks(folder, len(hosts.names), mode, limit, on=hosts.on(1),
                 mpirun=("-H", ",".join(hosts.addresses), "--map-by", "node", *flags))


def test_same_bytes_over_a_lossy_wire(hosts, tmp_path):
    with on_hosts(hosts, tmp_path, "rounds") as job:
        assert job.wait() == 0, job.log
        assert [job.exit_code(0), job.exit_code(1)] == [0, 0], job.log


@pytest.mark.parametrize("victim", [0, 1])
def test_a_rank_that_is_killed_is_named_on_the_other_host(hosts, tmp_path, victim):
    with on_hosts(hosts, tmp_path, "busy", 1800) as job:
        pid = job.pids()[victim]
        os.kill(pid, signal.SIGKILL)
        assert job.exit_code(1 - victim) == 1, job.log
        job.rank_says(1 - victim, rf"rank {victim} \({hosts.names[victim]}, pid {pid}\) ended")


def test_a_host_that_is_cut_off(hosts, tmp_path):
    """Each side ends within the limit, and names the other."""
    with on_hosts(hosts, tmp_path, "busy", 2) as job:
        job.pids()
        hosts.cut(2)
        for rank in (0, 1):
            assert job.exit_code(rank) == 1, job.log
            name = hosts.names[1 - rank]
            job.rank_says(rank, rf"rank {1 - rank} \({name}, pid \d+\) "
                                r"(has not answered for|did not do its part within) 2 s")
