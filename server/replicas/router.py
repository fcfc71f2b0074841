"""Which replica gets a request: the one that has computed its beginning, unless others idle.

Ray's own prefix-aware router belongs to ray.serve.llm and reads the arguments of its LLM server;
behind an ASGI ingress a router sees no body. So the front (front.py) puts names of the prompt's
beginnings where Ray keeps a request's session, and this router reads them there.
"""

import random
from typing import Any

from ray.serve.request_router import PendingRequest, ReplicaID, RequestRouter, RunningReplica

from server.replicas.prefix_owners import PrefixOwners


class PrefixRouter(RequestRouter):  # type: ignore[misc]
    """The owner of the longest beginning, else the less loaded of two replicas at random."""

    # Ray's 0.1 s is short for a replica whose engine keeps the interpreter busy.
    queue_len_response_deadline_s = 1.0
    max_queue_len_response_deadline_s = 5.0

    def initialize_state(self, slack: int) -> None:
        """`slack`: by how many requests the owner may be busier than the idlest replica."""
        self._slack = slack
        self._owners: PrefixOwners[ReplicaID] = PrefixOwners()

    async def choose_replicas(
        self,
        candidate_replicas: list[RunningReplica],
        pending_request: PendingRequest | None = None,
    ) -> list[list[RunningReplica]]:
        """Ranks of replicas, best first; of a rank Ray takes the one with the shortest queue."""
        two = random.sample(candidate_replicas, min(2, len(candidate_replicas)))
        if pending_request is None:
            return [two]
        pending_request.routing_context.should_backoff = True
        alive = {replica.replica_id: replica for replica in candidate_replicas}
        owner = self._owners.find(_names(pending_request), alive)
        if owner is None or self._load(owner) > self._slack + min(map(self._load, alive)):
            return [two]
        return [[alive[owner]], two]

    def on_request_routed(
        self, pending_request: PendingRequest, replica_id: ReplicaID, result: Any
    ) -> None:
        """Remember who computes these beginnings now."""
        super().on_request_routed(pending_request, replica_id, result)
        self._owners.record(_names(pending_request), replica_id)

    def _load(self, replica: ReplicaID) -> int:
        """Requests that it had when last heard of; one not heard of for long had none then."""
        return self.replica_queue_len_cache.get(replica) or 0


def _names(request: PendingRequest) -> list[str]:
    session = request.metadata.session_id
    return session.split(",") if session else []
