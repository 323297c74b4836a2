"""jqueue's queues. Each one calls a queue of casque.

broker         BrokerQueue: a GroupCommitLoop as a context manager.
calls          The calls that both kinds of queue share.
codec          Encodes a QueueState as bytes, and decodes it.
direct         DirectQueue: one commit per call.
group_commit   GroupCommitLoop: the calls of many tasks in one commit.
heartbeat      HeartbeatManager: sends heartbeats while a block of code runs.
"""
