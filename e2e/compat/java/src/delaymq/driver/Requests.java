package delaymq.driver;

import com.alibaba.fastjson.JSONObject;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragely;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.exception.MQBrokerException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.RequestCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.utils.MessageUtil;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/** Requests and replies: a producer that sends requests, and a consumer that replies through its own producer. */
final class Requests {
    private static final long REPLY_TIMEOUT_MS = 3000;
    private static final long CALLBACK_LIMIT_S = 60;

    private record Replier(DefaultMQPushConsumer consumer, DefaultMQProducer producer, List<Object> outcomes) {
        void stop() {
            consumer.shutdown();
            producer.shutdown();
        }
    }

    private final Clients clients;
    private final Output output;

    Requests(Clients clients, Output output) {
        this.clients = clients;
        this.output = output;
    }

    /** Fields: message, timeoutMs, callback (use a callback instead of waiting). Returns the reply. */
    Object request(JSONObject request) throws Exception {
        DefaultMQProducer producer = clients.get(request, DefaultMQProducer.class);
        Message message = Messages.toSend(request.getJSONObject("message"));
        long timeoutMs = request.getLongValue("timeoutMs");
        if (!request.getBooleanValue("callback")) {
            return reply(producer.request(message, timeoutMs));
        }
        CompletableFuture<Object> outcome = new CompletableFuture<>();
        producer.request(message, new RequestCallback() {
            @Override
            public void onSuccess(Message reply) {
                outcome.complete(reply(reply));
            }

            @Override
            public void onException(Throwable error) {
                outcome.completeExceptionally(error);
            }
        }, timeoutMs);
        return outcome.get(CALLBACK_LIMIT_S, TimeUnit.SECONDS);
    }

    private static Map<String, Object> reply(Message reply) {
        return Messages.toJson((MessageExt) reply);
    }

    /** Fields: group, topic, prefix of the replies' bodies, count (replies to each request). */
    Object start(JSONObject request) throws Exception {
        List<Object> outcomes = new CopyOnWriteArrayList<>();
        DefaultMQProducer producer = new DefaultMQProducer(request.getString("group") + "-replies", Acl.hook(request));
        clients.configure(producer, request);
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(
            request.getString("group"), Acl.hook(request), new AllocateMessageQueueAveragely());
        clients.configure(consumer, request);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(request.getString("topic"), "*");
        String client = request.getString("client");
        String prefix = request.getString("prefix");
        int count = request.containsKey("count") ? request.getIntValue("count") : 1;
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            for (MessageExt message : messages) {
                Map<String, Object> fields = Messages.toJson(message);
                fields.put("client", client);
                fields.put("arrivalTimestamp", System.currentTimeMillis());
                output.event("message", fields);
                for (int i = 0; i < count; i++) {
                    outcomes.add(send(producer, message, prefix));
                }
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        producer.start();
        consumer.start();
        Replier replier = new Replier(consumer, producer, outcomes);
        return clients.started(request, replier, replier::stop, consumer);
    }

    private static Map<String, Object> send(DefaultMQProducer producer, MessageExt message, String prefix) {
        Map<String, Object> outcome = new HashMap<>();
        try {
            byte[] body = (prefix + new String(message.getBody(), StandardCharsets.UTF_8))
                .getBytes(StandardCharsets.UTF_8);
            Message reply = MessageUtil.createReplyMessage(message, body);
            SendResult result = producer.send(reply, REPLY_TIMEOUT_MS);
            outcome.put("status", result.getSendStatus().name());
            outcome.put("msgId", result.getMsgId());
            outcome.put("offsetMsgId", result.getOffsetMsgId());
            outcome.put("queueOffset", result.getQueueOffset());
        } catch (Exception e) {
            Throwable cause = e.getCause() instanceof MQBrokerException ? e.getCause() : e;
            outcome.put("error", String.valueOf(cause.getMessage()));
        }
        return outcome;
    }

    /** Return the outcomes of the replies so far. */
    Object outcomes(JSONObject request) {
        return new ArrayList<>(clients.get(request, Replier.class).outcomes());
    }
}
