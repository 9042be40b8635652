package delaymq.driver;

import com.alibaba.fastjson.JSONObject;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.exception.MQBrokerException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;

/** Many concurrent asynchronous sends, and their outcomes. */
final class Floods {
    private static final long LIMIT_S = 60;

    private final Clients clients;

    Floods(Clients clients) {
        this.clients = clients;
    }

    /** Fields: message, count. Returns counts by outcome: the send status, or code and first word of the remark. */
    Object send(JSONObject request) throws Exception {
        DefaultMQProducer producer = clients.get(request, DefaultMQProducer.class);
        int count = request.getIntValue("count");
        Map<String, Integer> outcomes = new ConcurrentHashMap<>();
        CountDownLatch left = new CountDownLatch(count);
        SendCallback callback = new SendCallback() {
            @Override
            public void onSuccess(SendResult result) {
                ended(result.getSendStatus().name());
            }

            @Override
            public void onException(Throwable error) {
                ended(error instanceof MQBrokerException ? refusal((MQBrokerException) error) : error.toString());
            }

            private void ended(String outcome) {
                outcomes.merge(outcome, 1, Integer::sum);
                left.countDown();
            }
        };
        for (int i = 0; i < count; i++) {
            producer.send(Messages.toSend(request.getJSONObject("message")), callback);
        }
        if (!left.await(LIMIT_S, TimeUnit.SECONDS)) {
            throw new IllegalStateException(left.getCount() + " sends had no answer: " + outcomes);
        }
        return outcomes;
    }

    private static String refusal(MQBrokerException error) {
        String remark = String.valueOf(error.getErrorMessage());
        return error.getResponseCode() + " " + remark.substring(0, remark.indexOf(']') + 1);
    }
}
