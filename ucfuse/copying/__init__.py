"""Copying whole trees between a bucket and the local disk, or between buckets, past any mount.

`cli` names the two ends; `copy_job` goes through both, `moving` moves one file, `objects` and
`files` are the two kinds of trees. Nothing here knows a mount: what it writes is seen there as
whatever anybody else commits to the bucket.
"""
