"""Operations on a cluster, as functions over `client.admin` that return values: for `rmq`'s commands and its
dashboard.

    from rmq.operate.overview import overview

    async with rmq.connect("127.0.0.1:9876") as client:
        for broker in (await overview(client.admin)).brokers:
            print(broker.name, broker.role, broker.in_tps)

Each page of a dashboard has a module in this package. Functions that read take `client.admin` first;
functions that change something are verbs. No function prints or parses arguments. Names are the cluster's
full names, times are ms since 1970, and errors are those of `client.admin` (see `rmq.client.admin.cluster`).
Everything works with RocketMQ 4.9's and 5.3's servers too, if they answer the requests; a figure that a
server does not send is None.
"""
