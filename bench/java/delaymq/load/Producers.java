package delaymq.load;

import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * One started producer for each combination of NameServer, send timeout, number of retries (default: none) and, to use
 * connections of its own, instance.
 */
final class Producers {
    private static final Map<String, DefaultMQProducer> STARTED = new ConcurrentHashMap<>();
    private static final AtomicInteger NEXT_INSTANCE = new AtomicInteger();

    private Producers() {
    }

    static DefaultMQProducer get(Options options) throws MQClientException {
        String namesrv = options.text("namesrv");
        int timeoutMs = options.number("timeout_ms", 3000);
        int retries = options.number("retries", 0);
        boolean transactions = options.text("mode", "").equals("transaction");
        String key = namesrv + "/" + timeoutMs + "/" + retries + "/" + transactions + "/" + options.text("instance", "");
        synchronized (STARTED) {
            DefaultMQProducer known = STARTED.get(key);
            if (known != null) {
                return known;
            }
            DefaultMQProducer producer = transactions ? committing() : new DefaultMQProducer("load_producer", Account.hook());
            producer.setNamesrvAddr(namesrv);
            producer.setInstanceName(instanceName());
            producer.setRetryTimesWhenSendFailed(retries);
            producer.setRetryTimesWhenSendAsyncFailed(retries);
            producer.setSendMsgTimeout(timeoutMs);
            producer.setDefaultTopicQueueNums(8);
            producer.start();
            STARTED.put(key, producer);
            return producer;
        }
    }

    /** Commits every transactional message, immediately and when the broker checks it. */
    private static DefaultMQProducer committing() {
        TransactionMQProducer producer = new TransactionMQProducer("load_transactions", Account.hook());
        producer.setTransactionListener(new TransactionListener() {
            @Override
            public LocalTransactionState executeLocalTransaction(Message message, Object argument) {
                return LocalTransactionState.COMMIT_MESSAGE;
            }

            @Override
            public LocalTransactionState checkLocalTransaction(MessageExt message) {
                return LocalTransactionState.COMMIT_MESSAGE;
            }
        });
        return producer;
    }

    /** Shuts down every producer of one NameServer, or all producers if none is given. */
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

    /** Clients with one instance name would share connections, also across NameServers. */
    static String instanceName() {
        return "load-" + ProcessHandle.current().pid() + "-" + NEXT_INSTANCE.incrementAndGet();
    }
}
