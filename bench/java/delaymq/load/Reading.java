package delaymq.load;

import java.io.BufferedWriter;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.consumer.PullStatus;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/** Reads queues by offset: the number of messages in a topic, and the messages themselves. */
@SuppressWarnings("deprecation")
final class Reading {
    private static final Map<String, DefaultMQPullConsumer> STARTED = new ConcurrentHashMap<>();

    private Reading() {
    }

    private static DefaultMQPullConsumer consumer(String namesrv, String group) throws Exception {
        synchronized (STARTED) {
            DefaultMQPullConsumer known = STARTED.get(namesrv + "/" + group);
            if (known != null) {
                return known;
            }
            DefaultMQPullConsumer consumer = new DefaultMQPullConsumer(group, Account.hook());
            consumer.setNamesrvAddr(namesrv);
            consumer.setInstanceName(Producers.instanceName());
            consumer.start();
            STARTED.put(namesrv + "/" + group, consumer);
            return consumer;
        }
    }

    static void forget(String namesrv) {
        synchronized (STARTED) {
            STARTED.entrySet().removeIf(entry -> {
                boolean ours = namesrv == null || entry.getKey().startsWith(namesrv + "/");
                if (ours) {
                    entry.getValue().shutdown();
                }
                return ours;
            });
        }
    }

    /** Returns the sum of the queues' lengths. */
    static Reply held(Options options) throws Exception {
        DefaultMQPullConsumer consumer = consumer(options.text("namesrv"), "load_reader");
        long sum = 0;
        Set<MessageQueue> queues = consumer.fetchSubscribeMessageQueues(options.text("topic"));
        for (MessageQueue queue : queues) {
            sum += consumer.maxOffset(queue) - consumer.minOffset(queue);
        }
        return new Reply().put("messages", sum).put("queues", queues.size());
    }

    /** Writes `unique key, queue, queue offset` of every message, read by a separate group, to `out`. */
    static Reply drain(Options options) throws Exception {
        DefaultMQPullConsumer consumer = consumer(options.text("namesrv"), options.text("group"));
        long deadline = System.nanoTime() + (long) (options.decimal("at_most_seconds", 120) * 1e9);
        long read = 0;
        try (BufferedWriter out = Files.newBufferedWriter(Path.of(options.text("out")))) {
            for (MessageQueue queue : consumer.fetchSubscribeMessageQueues(options.text("topic"))) {
                long offset = consumer.minOffset(queue);
                long end = consumer.maxOffset(queue);
                while (offset < end) {
                    if (System.nanoTime() > deadline) {
                        throw new IllegalStateException("still reading " + queue + " at " + offset + " of " + end);
                    }
                    PullResult result = consumer.pull(queue, "*", offset, 32);
                    if (result.getPullStatus() == PullStatus.FOUND) {
                        for (MessageExt message : result.getMsgFoundList()) {
                            out.write(message.getMsgId() + " " + queue.getQueueId() + " " + message.getQueueOffset() + "\n");
                            read++;
                        }
                    }
                    if (result.getNextBeginOffset() <= offset) {
                        throw new IllegalStateException(queue + ": no progress at " + offset + ", " + result);
                    }
                    offset = result.getNextBeginOffset();
                }
            }
        }
        return new Reply().put("read", read);
    }
}
