"""The names of rocketmq-client-python 2.0, and further names of its 0.4, over the blocking client.

    from rmq.compat.rocketmq.client import ConsumeStatus, Message, Producer, PushConsumer

The modules have the names of the package `rocketmq`: `client`, `consts`, `exceptions`, `ffi`.
"""
