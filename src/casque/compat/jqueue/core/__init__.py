"""jqueue's queues, each carried out by a queue of casque.

broker         BrokerQueue: a GroupCommitLoop as a context manager.
calls          The calls that both kinds of queue share.
codec          A QueueState as the bytes of a document, and back.
direct         DirectQueue: one commit per call.
group_commit   GroupCommitLoop: the calls of many tasks in one commit.
heartbeat      HeartbeatManager: beats while a block of code runs, and ends silently.
"""
