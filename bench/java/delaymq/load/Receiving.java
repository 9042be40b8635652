package delaymq.load;

import java.nio.ByteBuffer;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.locks.LockSupport;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.MessageSelector;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragely;
import org.apache.rocketmq.client.impl.consumer.DefaultMQPushConsumerImpl;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * Push consumers: the rate at which a filled topic is read, the time of a message from send to receive, and gaps while
 * brokers fail.
 */
final class Receiving {
    private Receiving() {
    }

    private static DefaultMQPushConsumer consumer(Options options, MessageListenerConcurrently listener) throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(
            options.text("group"), Account.hook(), new AllocateMessageQueueAveragely());
        consumer.setNamesrvAddr(options.text("namesrv"));
        consumer.setInstanceName(Producers.instanceName());
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setConsumeMessageBatchMaxSize(32);
        if (options.has("sql")) {
            consumer.subscribe(options.text("topic"), MessageSelector.bySql(options.text("sql")));
        } else {
            consumer.subscribe(options.text("topic"), options.text("tags", "*"));
        }
        consumer.registerMessageListener(listener);
        return consumer;
    }

    /**
     * Reads `count` messages with a new group, timed from the first to the last of them. tags or sql (without blanks)
     * select the messages; settled: see start.
     */
    static Reply consume(Options options) throws Exception {
        long count = options.longNumber("count", 1);
        AtomicLong received = new AtomicLong();
        AtomicLong first = new AtomicLong();
        AtomicLong last = new AtomicLong();
        DefaultMQPushConsumer consumer = consumer(options, (messages, context) -> {
            long now = System.nanoTime();
            first.compareAndSet(0, now);
            if (received.addAndGet(messages.size()) >= count) {
                last.compareAndSet(0, now);
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        try {
            start(consumer, options.has("settled"));
            await(options, () -> received.get() >= count);
        } finally {
            consumer.shutdown();
        }
        if (received.get() < count) {
            throw new IllegalStateException("received " + received.get() + " of " + count + " in time");
        }
        double elapsed = Math.max(1, last.get() - first.get()) / 1e9;
        return new Reply().put("received", received.get()).put("elapsed_s", elapsed).put("rate", count / elapsed);
    }

    /**
     * Consumes for `seconds`, or until `stop`, and returns the number of messages and the longest time between two of
     * them, from the first one to the end.
     */
    static Reply watch(Options options) throws Exception {
        AtomicLong received = new AtomicLong();
        Gaps gaps = new Gaps();
        DefaultMQPushConsumer consumer = consumer(options, (messages, context) -> {
            gaps.next(System.nanoTime());
            received.addAndGet(messages.size());
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        long startNanos = System.nanoTime();
        long deadlineNanos = startNanos + (long) (options.decimal("seconds", 60) * 1e9);
        try {
            consumer.start();
            while (System.nanoTime() < deadlineNanos && !Sending.isStopped(startNanos)) {
                Thread.sleep(20);
            }
            gaps.next(System.nanoTime());
        } finally {
            consumer.shutdown();
        }
        return new Reply().put("received", received.get()).put("longest_gap_ms", gaps.longestMs());
    }

    /**
     * Starts a consumer; a settled one pulls only when the broker has its subscription. A pull that overtakes the
     * heartbeat with the subscription is rejected, and its queue is not pulled again for 3 s.
     */
    @SuppressWarnings("deprecation")
    private static void start(DefaultMQPushConsumer consumer, boolean settled) throws Exception {
        if (!settled) {
            consumer.start();
            return;
        }
        consumer.suspend();
        consumer.start();
        DefaultMQPushConsumerImpl inner = consumer.getDefaultMQPushConsumerImpl();
        inner.getRebalanceImpl().doRebalance(false);
        inner.getmQClientFactory().sendHeartbeatToAllBrokerWithLock();
        consumer.resume();
    }

    /** Sends `count` messages at `rate` per second and measures the time until this process's listener has each. */
    static Reply latency(Options options) throws Exception {
        DefaultMQProducer producer = Producers.get(options);
        int count = options.number("count", 1000);
        int skipped = options.number("skip", count / 10);
        double rate = options.decimal("rate", 500);
        byte[] filler = new byte[Math.max(0, options.number("size", 100) - 24)];
        long run = System.nanoTime();
        Durations durations = new Durations();
        AtomicLong received = new AtomicLong();
        DefaultMQPushConsumer consumer = consumer(options, (messages, context) -> {
            long now = System.nanoTime();
            for (MessageExt message : messages) {
                ByteBuffer body = ByteBuffer.wrap(message.getBody());
                if (body.remaining() < 24 || body.getLong() != run) {
                    continue; // from an earlier run
                }
                long sent = body.getLong();
                if (body.getLong() >= skipped) {
                    durations.add(now - sent);
                }
                received.incrementAndGet();
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        try {
            consumer.start();
            Thread.sleep(1000); // by then, queues are assigned and pulls are held
            long start = System.nanoTime();
            for (int i = 0; i < count; i++) {
                long turn = start + (long) (i * 1e9 / rate);
                for (long left = turn - System.nanoTime(); left > 0; left = turn - System.nanoTime()) {
                    LockSupport.parkNanos(left);
                }
                ByteBuffer body = ByteBuffer.allocate(24 + filler.length);
                body.putLong(run).putLong(System.nanoTime()).putLong(i).put(filler);
                producer.send(new Message(options.text("topic"), body.array()));
            }
            await(options, () -> received.get() >= count);
        } finally {
            consumer.shutdown();
        }
        if (received.get() < count) {
            throw new IllegalStateException("received " + received.get() + " of " + count + " in time");
        }
        return new Reply().put("received", received.get()).put("p50_us", durations.micros(50))
            .put("p99_us", durations.micros(99));
    }

    private interface Condition {
        boolean holds();
    }

    private static void await(Options options, Condition condition) {
        long deadline = System.nanoTime() + (long) (options.decimal("at_most_seconds", 120) * 1e9);
        while (!condition.holds() && System.nanoTime() < deadline) {
            LockSupport.parkNanos(TimeUnit.MILLISECONDS.toNanos(2));
        }
    }
}
