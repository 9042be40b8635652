package delaymq.driver;

import com.alibaba.fastjson.JSONObject;
import java.nio.charset.StandardCharsets;
import java.util.HashMap;
import java.util.Map;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageAccessor;
import org.apache.rocketmq.common.protocol.RequestCode;
import org.apache.rocketmq.common.protocol.header.ConsumerSendMsgBackRequestHeader;
import org.apache.rocketmq.remoting.protocol.RemotingCommand;

/** Handling of failed messages by consumers, in single steps, so that a test receives each response. */
@SuppressWarnings("deprecation")
final class Retries {
    private static final long TIMEOUT_MS = 10_000;

    private final Clients clients;

    Retries(Clients clients) {
        this.clients = clients;
    }

    /**
     * Send to the consumer's own retry topic, as after a failed send-back, or by an orderly consumer at its limit.
     * Fields: group, body, reconsumeTimes, maxReconsumeTimes, delayLevel, originTopic.
     */
    Object sendOwn(JSONObject request) throws Exception {
        DefaultMQProducer producer = clients.get(request, DefaultMQProducer.class);
        byte[] body = request.getString("body").getBytes(StandardCharsets.UTF_8);
        Message message = new Message("%RETRY%" + request.getString("group"), body);
        MessageAccessor.putProperty(message, "RETRY_TOPIC", request.getString("originTopic"));
        MessageAccessor.setReconsumeTime(message, request.getString("reconsumeTimes"));
        if (request.containsKey("maxReconsumeTimes")) {
            MessageAccessor.setMaxReconsumeTimes(message, request.getString("maxReconsumeTimes"));
        }
        message.setDelayTimeLevel(request.getIntValue("delayLevel"));
        return Messages.toJson(producer.send(message));
    }

    /** Send a message back as on the wire; fields: address, group, offset, delayLevel, maxReconsumeTimes, unitMode. */
    Object sendBack(JSONObject request) throws Exception {
        DefaultMQPullConsumer consumer = clients.get(request, DefaultMQPullConsumer.class);
        ConsumerSendMsgBackRequestHeader header = new ConsumerSendMsgBackRequestHeader();
        header.setGroup(request.getString("group"));
        header.setOffset(request.getLong("offset"));
        header.setDelayLevel(request.getIntValue("delayLevel"));
        header.setOriginMsgId("");
        header.setOriginTopic("");
        header.setUnitMode(request.getBooleanValue("unitMode"));
        header.setMaxReconsumeTimes(request.getInteger("maxReconsumeTimes"));
        RemotingCommand command = RemotingCommand.createRequestCommand(RequestCode.CONSUMER_SEND_MSG_BACK, header);
        RemotingCommand answer = consumer.getDefaultMQPullConsumerImpl().getRebalanceImpl().getmQClientFactory()
            .getMQClientAPIImpl().getRemotingClient().invokeSync(request.getString("address"), command, TIMEOUT_MS);
        Map<String, Object> fields = new HashMap<>();
        fields.put("code", answer.getCode());
        fields.put("remark", answer.getRemark());
        return fields;
    }
}
