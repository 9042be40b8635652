package delaymq.load;

import java.util.ArrayList;
import java.util.List;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageClientIDSetter;

/**
 * Sends messages one at a time until one is acknowledged: the duration of a broker's start as seen by a producer.
 *
 * <p>A message whose send failed may nevertheless be stored, so the reply contains the unique keys of all attempts.
 */
final class FirstSend {
    private static final int PAUSE_MS = 3;

    private FirstSend() {
    }

    static Reply run(Options options) throws Exception {
        DefaultMQProducer producer = Producers.get(options);
        String topic = options.text("topic");
        long deadline = System.currentTimeMillis() + (long) (options.decimal("at_most_seconds", 120) * 1000);
        List<String> keys = new ArrayList<>();
        String last = null;
        while (System.currentTimeMillis() < deadline) {
            Message message = new Message(topic, new byte[100]);
            try {
                SendResult result = producer.send(message);
                long now = System.currentTimeMillis();
                keys.add(MessageClientIDSetter.getUniqID(message));
                if (result.getSendStatus() == SendStatus.SEND_OK) {
                    return new Reply().put("acknowledged_ms", now).put("keys", keys).put("last_failure", last);
                }
                last = result.getSendStatus().name();
            } catch (Exception e) {
                last = e.toString();
                if (MessageClientIDSetter.getUniqID(message) != null) {
                    keys.add(MessageClientIDSetter.getUniqID(message));
                }
            }
            Thread.sleep(PAUSE_MS);
        }
        throw new IllegalStateException("no send was acknowledged in time; last: " + last);
    }
}
