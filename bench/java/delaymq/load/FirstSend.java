package delaymq.load;

import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.message.Message;

/** Tries one message after another until one is acknowledged: how long a broker's start takes for a producer. */
final class FirstSend {
    private static final int PAUSE_MS = 3;

    private FirstSend() {
    }

    static Reply run(Options options) throws Exception {
        DefaultMQProducer producer = Producers.get(options);
        String topic = options.text("topic");
        long deadline = System.currentTimeMillis() + (long) (options.decimal("at_most_seconds", 120) * 1000);
        String last = "none tried";
        for (int attempts = 1; System.currentTimeMillis() < deadline; attempts++) {
            try {
                SendResult result = producer.send(new Message(topic, new byte[100]));
                if (result.getSendStatus() == SendStatus.SEND_OK) {
                    return new Reply().put("acknowledged_ms", System.currentTimeMillis()).put("attempts", attempts);
                }
                last = result.getSendStatus().name();
            } catch (Exception e) {
                last = e.toString();
            }
            Thread.sleep(PAUSE_MS);
        }
        throw new IllegalStateException("no send was acknowledged in time; last: " + last);
    }
}
