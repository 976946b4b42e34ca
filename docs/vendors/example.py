#!/usr/bin/env python3
"""A complete vendor: two devices, their health, and what it does when it is asked.

Needs grpcio and grpcio-tools; PROTO_DIR is the directory that machinist/vendor/v1/vendor.proto lies in.
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
    """The devices as they are now; a real vendor asks its hardware here."""
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
    """What the agent wants to be done. The recipes answer all allocations, so little is left."""
    if question.WhichOneof("asked") in ("quiesce", "resume"):
        # Close the nodes, park the firmware; then it is done.
        return api.Answer(id=question.id, done=api.Done())
    return api.Answer(id=question.id, error="this vendor is not asked such things")


class Session:
    """One session, to its end."""

    def __init__(self):
        self.outbox = queue.Queue()
        self.pause = 10.0
        hello = api.Hello(
            api_versions=["v1"], vendor="acme", instance=INSTANCE, resources=[RESOURCE]
        )
        self.outbox.put(api.FromVendor(hello=hello))

    def said(self):
        """What is to be said, and a heartbeat when there is nothing."""
        while True:
            try:
                yield self.outbox.get(timeout=self.pause)
            except queue.Empty:
                yield api.FromVendor(heartbeat=api.Heartbeat())

    def run(self):
        with grpc.insecure_channel(f"unix:{SOCKET}") as channel:
            for message in services.VendorStub(channel).Session(self.said()):
                kind = message.WhichOneof("said")
                if kind == "welcome":
                    self.welcome(message.welcome)
                elif kind == "rejected":
                    print(message.rejected.message, file=sys.stderr)
                elif kind == "question":
                    self.outbox.put(api.FromVendor(answer=answer(message.question)))

    def welcome(self, welcome):
        self.pause = welcome.heartbeat_ms / 2000
        # What this instance said in an earlier session counts on.
        generation = max((kept.generation for kept in welcome.kept), default=0) + 1
        snapshot = api.Snapshot(resource=RESOURCE, generation=generation, devices=devices())
        self.outbox.put(api.FromVendor(snapshot=snapshot))


while True:
    try:
        Session().run()
    except grpc.RpcError as error:
        # The agent may restart whenever it likes.
        print(f"the session is over: {error.details()}", file=sys.stderr)
    time.sleep(0.5)
