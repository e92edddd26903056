# SPDX-License-Identifier: Apache-2.0
"""torch's DeviceMesh on communicators, as torchcomms makes it.

torch has no public function that makes a group of a communicator which is there, so this file writes into its
tables, as torchcomms does.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import _register_process_group
from torch.distributed import distributed_c10d as c10d
from torch.distributed.device_mesh import DeviceMesh

from ._comm import TorchComm
from ._torch_group import _BackendWrapper

_BACKEND = "torchcomm"


def init_device_mesh(
    mesh_dim_comms: tuple[TorchComm, ...],
    mesh_dim_names: tuple[str, ...],
    _global_comm: TorchComm | None = None,
) -> DeviceMesh:
    """Makes a mesh with a dimension for each communicator.

    mesh_dim_names: of the dimensions, which their groups get.
    _global_comm: of all ranks: it becomes torch's default group. One dimension needs none.
    """
    if _global_comm is None and len(mesh_dim_comms) != 1:
        raise RuntimeError(
            f"{len(mesh_dim_comms)} communicators need one of all ranks beside them: give it as _global_comm"
        )
    shape = tuple(comm.get_size() for comm in mesh_dim_comms)
    mesh = torch.arange(math.prod(shape), dtype=torch.int).view(shape)
    rank = int(mesh[tuple(comm.get_rank() for comm in mesh_dim_comms)])
    groups = [
        _create_torchcomm_process_group(comm, name, _BACKEND, _ranks_in_dimension(mesh, dimension, rank))
        for dimension, (comm, name) in enumerate(zip(mesh_dim_comms, mesh_dim_names))
    ]
    world = groups[0]
    if _global_comm is not None:
        world = _create_torchcomm_process_group(_global_comm, _global_comm.get_name())
    dist.GroupMember.WORLD = world
    device_mesh = DeviceMesh(
        mesh_dim_comms[0].get_device().type,
        mesh,
        mesh_dim_names=mesh_dim_names,
        _init_backend=False,
        _rank=rank,
    )
    device_mesh._dim_group_names = list[Any](mesh_dim_names)
    return device_mesh


def _ranks_in_dimension(mesh: torch.Tensor, dimension: int, rank: int) -> dict[int, int]:
    """The ranks of the mesh that lie with this one in a dimension, and their ranks in its group."""
    rows = mesh.transpose(dimension, -1).reshape(-1, mesh.size(dimension))
    (row,) = [row for row in rows.tolist() if rank in row]
    return {member: position for position, member in enumerate(row)}


def _create_torchcomm_process_group(
    comm: TorchComm,
    group_name: str,
    backend_str: str = _BACKEND,
    global_ranks_mapping: dict[int, int] | None = None,
) -> _BackendWrapper:
    """Makes a group on a communicator and enters it into torch's tables.

    global_ranks_mapping: ranks in the default group to ranks in this one; None: they are the same.
    """
    group = _BackendWrapper(comm)
    group.setGroupName(group_name)
    world: Any = c10d._world
    world.pg_map[group] = backend_str, group.get_group_store()
    world.pg_names[group] = group_name
    world.pg_backend_config[group] = f"{comm.get_device().type}:{backend_str}"
    world.pg_group_ranks[group] = global_ranks_mapping or {rank: rank for rank in range(comm.get_size())}
    tag = f"ptd:{group_name}"
    world.tags_to_pg.setdefault(tag, []).append(group)
    world.pg_to_tag[group] = tag
    _register_process_group(group_name, group)  # type: ignore[arg-type]
    return group


def _flatten_with_comm(
    mesh: DeviceMesh, mesh_dim_name: str, comm: TorchComm, global_ranks: list[int], layout: Any
) -> DeviceMesh:
    """Makes a mesh of one dimension that several dimensions of a mesh are together.

    layout: torch's _MeshLayout of those dimensions.
    """
    ranks = {rank: position for position, rank in enumerate(global_ranks)}
    _create_torchcomm_process_group(comm, mesh_dim_name, _BACKEND, ranks)
    made: Any = DeviceMesh
    flat = made(
        comm.get_device().type,
        mesh_dim_names=(mesh_dim_name,),
        _init_backend=False,
        _rank=comm.get_rank(),
        _layout=_one_dimension(layout),
        _rank_map=mesh._rank_map,
        _root_mesh=mesh,
    )
    flat._dim_group_names = [mesh_dim_name]
    flat._root_mesh = mesh._get_root_mesh()
    flat._root_mesh._flatten_mapping[mesh_dim_name] = flat
    return flat  # type: ignore[no-any-return]


def _one_dimension(layout: Any) -> Any:
    if hasattr(layout, "coalesce"):
        return layout.coalesce()
    from torch.distributed._mesh_layout import _MeshLayout

    return _MeshLayout([layout.collapse()])
