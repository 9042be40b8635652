package delaymq.driver;

import com.alibaba.fastjson.JSONObject;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.selector.SelectMessageQueueByHash;
import org.apache.rocketmq.common.MixAll;
import org.apache.rocketmq.common.message.Message;

/** DefaultMQProducer: all kinds of sends. */
final class Producers {
    /** An asynchronous send ends by its own timeout; this limit only applies if its callback is never called. */
    private static final long CALLBACK_LIMIT_S = 60;
    /** Shared machines occasionally stall for longer than RocketMQ's default of 3 s. */
    static final int PATIENT_MS = 15_000;

    private final Clients clients;

    Producers(Clients clients) {
        this.clients = clients;
    }

    @SuppressWarnings("deprecation") // gives access to the client's instance
    Object start(JSONObject request) throws Exception {
        DefaultMQProducer producer = create(request);
        clients.configure(producer, request);
        producer.setSendMsgTimeout(request.containsKey("timeoutMs") ? request.getIntValue("timeoutMs") : PATIENT_MS);
        if (request.containsKey("retries")) {
            producer.setRetryTimesWhenSendFailed(request.getIntValue("retries"));
            producer.setRetryTimesWhenSendAsyncFailed(request.getIntValue("retries"));
        }
        if (request.containsKey("maxMessageSize")) {
            producer.setMaxMessageSize(request.getIntValue("maxMessageSize"));
        }
        if (request.containsKey("compressOver")) {
            producer.setCompressMsgBodyOverHowmuch(request.getIntValue("compressOver"));
        }
        if (request.containsKey("defaultTopicQueues")) {
            producer.setDefaultTopicQueueNums(request.getIntValue("defaultTopicQueues"));
        }
        producer.start();
        Clients.keepConnections(request, producer.getDefaultMQProducerImpl().getmQClientFactory());
        return clients.started(request, producer, producer::shutdown, producer);
    }

    /** compressType: ZLIB, LZ4 or ZSTD, which a producer reads from the system properties when it is created. */
    private static synchronized DefaultMQProducer create(JSONObject request) {
        if (request.containsKey("compressType")) {
            System.setProperty(MixAll.MESSAGE_COMPRESS_TYPE, request.getString("compressType"));
        }
        try {
            return new DefaultMQProducer(
                request.getString("group"), Acl.hook(request), request.getBooleanValue("trace"),
                request.getString("traceTopic"));
        } finally {
            System.clearProperty(MixAll.MESSAGE_COMPRESS_TYPE);
        }
    }

    /** Fields: topic, handle. Clients of 5.3 only. */
    Object recall(JSONObject request) throws Exception {
        DefaultMQProducer producer = clients.get(request, DefaultMQProducer.class);
        return Versions.recallMessage(producer, request.getString("topic"), request.getString("handle"));
    }

    /** Fields: message; mode sync, async or oneway; queueId or orderKey to choose the queue. */
    Object send(JSONObject request) throws Exception {
        DefaultMQProducer producer = clients.get(request, DefaultMQProducer.class);
        Message message = Messages.toSend(request.getJSONObject("message"));
        switch (request.getString("mode")) {
            case "oneway":
                sendOneway(producer, message, request);
                return null;
            case "async":
                return Messages.toJson(sendAsync(producer, message, request));
            default:
                return Messages.toJson(sendSync(producer, message, request));
        }
    }

    private static SendResult sendSync(DefaultMQProducer producer, Message message, JSONObject request)
        throws Exception {
        if (request.containsKey("orderKey")) {
            return producer.send(message, new SelectMessageQueueByHash(), request.getString("orderKey"));
        }
        if (request.containsKey("queueId")) {
            return producer.send(message, queue(message, request));
        }
        return producer.send(message);
    }

    private static SendResult sendAsync(DefaultMQProducer producer, Message message, JSONObject request)
        throws Exception {
        CompletableFuture<SendResult> outcome = new CompletableFuture<>();
        SendCallback callback = new SendCallback() {
            @Override
            public void onSuccess(SendResult result) {
                outcome.complete(result);
            }

            @Override
            public void onException(Throwable error) {
                outcome.completeExceptionally(error);
            }
        };
        if (request.containsKey("orderKey")) {
            producer.send(message, new SelectMessageQueueByHash(), request.getString("orderKey"), callback);
        } else if (request.containsKey("queueId")) {
            producer.send(message, queue(message, request), callback);
        } else {
            producer.send(message, callback);
        }
        return await(outcome);
    }

    private static void sendOneway(DefaultMQProducer producer, Message message, JSONObject request) throws Exception {
        if (request.containsKey("orderKey")) {
            producer.sendOneway(message, new SelectMessageQueueByHash(), request.getString("orderKey"));
        } else if (request.containsKey("queueId")) {
            producer.sendOneway(message, queue(message, request));
        } else {
            producer.sendOneway(message);
        }
    }

    Object sendBatch(JSONObject request) throws Exception {
        DefaultMQProducer producer = clients.get(request, DefaultMQProducer.class);
        return Messages.toJson(producer.send(Messages.toSend(request.getJSONArray("messages"))));
    }

    Object queues(JSONObject request) throws Exception {
        DefaultMQProducer producer = clients.get(request, DefaultMQProducer.class);
        return Messages.toJsonQueues(producer.fetchPublishMessageQueues(request.getString("topic")));
    }

    private static org.apache.rocketmq.common.message.MessageQueue queue(Message message, JSONObject request) {
        JSONObject fields = new JSONObject();
        fields.put("topic", message.getTopic());
        fields.put("queueId", request.getIntValue("queueId"));
        return Messages.queue(fields);
    }

    private static SendResult await(CompletableFuture<SendResult> outcome) throws Exception {
        try {
            return outcome.get(CALLBACK_LIMIT_S, TimeUnit.SECONDS);
        } catch (ExecutionException e) {
            if (e.getCause() instanceof Exception) {
                throw (Exception) e.getCause();
            }
            throw e;
        }
    }
}
