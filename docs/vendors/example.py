#!/usr/bin/env python3
"""A complete device driver for the vendor API: two devices, their health, and answers to questions.

Needs grpcio and grpcio-tools; PROTO_DIR is the directory that contains machinist/vendor/v1/vendor.proto.
"""

import os
import queue
import sys
import time
import uuid

import grpc

sys.path.insert(0, os.environ.get("PROTO_DIR", "proto"))
api, services = grpc.protos_and_services("machinist/vendor/v1/vendor.proto")

SOCKET = os.environ.get("MACHINIST_VENDOR_SOCKET", "/run/machinist/vendors/acme/agent.sock")
RESOURCE = "acme.dev/accelerator"
INSTANCE = f"acme-{uuid.uuid4()}"


def devices():
    """Returns the current devices; a real driver queries its hardware here, and reports what is missing as unhealthy."""
    return [
        api.Device(
            id=name,
            health=api.HEALTH_HEALTHY,
            attributes={"model": "A1"},
            capacity={"memory": "16Gi"},
            recipe=api.Recipe(
                nodes=[api.Node(path=f"/dev/{name}")],
                env={"ACME_DEVICES": "{id}"},
            ),
        )
        for name in ("acme0", "acme1")
    ]


def answer(question):
    """Answers a question of the agent. Allocations are answered by the recipes, so only two kinds arrive."""
    if question.WhichOneof("asked") in ("quiesce", "resume"):
        # A real driver closes its device nodes and parks the firmware here.
        return api.Answer(id=question.id, done=api.Done())
    return api.Answer(id=question.id, error="this vendor is not asked such things")


class Session:
    """Runs one session until it ends."""

    def __init__(self):
        self.outbox = queue.Queue()
        self.pause = 10.0
        self.generation = 0
        self.offered = None
        hello = api.Hello(
            api_versions=["v1"], vendor="acme", instance=INSTANCE, resources=[RESOURCE]
        )
        self.outbox.put(api.FromVendor(hello=hello))

    def said(self):
        """Yields queued messages; when there are none, a snapshot if the devices have changed, or a heartbeat."""
        while True:
            try:
                yield self.outbox.get(timeout=self.pause)
            except queue.Empty:
                changed = self.generation > 0 and devices() != self.offered
                yield self.snapshot() if changed else api.FromVendor(heartbeat=api.Heartbeat())

    def run(self):
        with grpc.insecure_channel(f"unix:{SOCKET}") as channel:
            for message in services.VendorStub(channel).Session(self.said()):
                kind = message.WhichOneof("said")
                if kind == "welcome":
                    self.welcome(message.welcome)
                elif kind == "rejected":
                    print(message.rejected.message, file=sys.stderr)
                    # The last accepted snapshot stays in force: offer the devices again after the pause.
                    self.offered = None
                elif kind == "question":
                    self.outbox.put(api.FromVendor(answer=answer(message.question)))

    def welcome(self, welcome):
        self.pause = welcome.heartbeat_ms / 2000
        # Generations continue from those of earlier sessions of this instance.
        self.generation = max((kept.generation for kept in welcome.kept), default=0)
        self.outbox.put(self.snapshot())

    def snapshot(self):
        self.generation += 1
        self.offered = devices()
        return api.FromVendor(
            snapshot=api.Snapshot(resource=RESOURCE, generation=self.generation, devices=self.offered)
        )


while True:
    try:
        Session().run()
    except grpc.RpcError as error:
        # The agent may restart at any time: reconnect.
        print(f"the session is over: {error.details()}", file=sys.stderr)
    time.sleep(0.5)
