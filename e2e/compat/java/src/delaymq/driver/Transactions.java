package delaymq.driver;

import com.alibaba.fastjson.JSONObject;
import java.util.HashMap;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.client.producer.TransactionSendResult;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageAccessor;
import org.apache.rocketmq.common.message.MessageConst;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.protocol.RequestCode;
import org.apache.rocketmq.common.protocol.header.EndTransactionRequestHeader;
import org.apache.rocketmq.remoting.protocol.RemotingCommand;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/**
 * TransactionMQProducer with a listener whose results are in the message's property `script`.
 *
 * <p>One letter per result: C commit, R rollback, U unknown, X an exception. The first is that of the local
 * transaction, the others those of the checks; the last one is repeated. Each check is an event of the producer.
 */
final class Transactions {
    private static final String SCRIPT = "script";
    private static final long TIMEOUT_MS = 10_000;

    private final Clients clients;
    private final Output output;

    Transactions(Clients clients, Output output) {
        this.clients = clients;
        this.output = output;
    }

    private final class ByScript implements TransactionListener {
        private final String client;
        private final Map<String, Integer> checks = new ConcurrentHashMap<>();

        ByScript(String client) {
            this.client = client;
        }

        @Override
        public LocalTransactionState executeLocalTransaction(Message message, Object argument) {
            return answer(message, 0);
        }

        @Override
        public LocalTransactionState checkLocalTransaction(MessageExt message) {
            Map<String, Object> fields = Messages.toJson(message);
            fields.put("client", client);
            fields.put("arrivalTimestamp", System.currentTimeMillis());
            output.event("message", fields);
            return answer(message, checks.merge(message.getTransactionId(), 1, Integer::sum));
        }

        private LocalTransactionState answer(Message message, int number) {
            String script = message.getUserProperty(SCRIPT);
            switch (script.charAt(Math.min(number, script.length() - 1))) {
                case 'C':
                    return LocalTransactionState.COMMIT_MESSAGE;
                case 'R':
                    return LocalTransactionState.ROLLBACK_MESSAGE;
                case 'X':
                    throw new IllegalStateException("the local transaction failed, as scripted");
                default:
                    return LocalTransactionState.UNKNOW;
            }
        }
    }

    Object start(JSONObject request) throws Exception {
        TransactionMQProducer producer = new TransactionMQProducer(request.getString("group"), Acl.hook(request));
        producer.setSendMsgTimeout(Producers.PATIENT_MS);
        clients.configure(producer, request);
        producer.setTransactionListener(new ByScript(request.getString("client")));
        producer.start();
        return clients.started(request, producer, producer::shutdown, producer);
    }

    /** Fields: message, script. Returns the send's result, the local state and the transaction's id. */
    Object send(JSONObject request) throws Exception {
        Message message = Messages.toSend(request.getJSONObject("message"));
        message.putUserProperty(SCRIPT, request.getString(SCRIPT));
        TransactionSendResult result =
            clients.get(request, TransactionMQProducer.class).sendMessageInTransaction(message, null);
        Map<String, Object> fields = Messages.toJson(result);
        fields.put("localState", result.getLocalTransactionState().name());
        fields.put("transactionId", result.getTransactionId());
        return fields;
    }

    /** Fields: message, properties that otherwise only the client sets. Sends a half message without ending it. */
    Object prepare(JSONObject request) throws Exception {
        DefaultMQProducer producer = clients.get(request, DefaultMQProducer.class);
        Message message = Messages.toSend(request.getJSONObject("message"));
        MessageAccessor.putProperty(message, MessageConst.PROPERTY_TRANSACTION_PREPARED, "true");
        MessageAccessor.putProperty(message, MessageConst.PROPERTY_PRODUCER_GROUP, producer.getProducerGroup());
        message.putUserProperty(SCRIPT, request.getString(SCRIPT));
        return Messages.toJson(producer.send(message));
    }

    /** End a transaction and wait for the response, which the client itself never does. Returns code and remark. */
    @SuppressWarnings("deprecation") // the only access to the client's connections
    Object end(JSONObject request) throws Exception {
        DefaultMQProducer producer = clients.get(request, DefaultMQProducer.class);
        EndTransactionRequestHeader header = new EndTransactionRequestHeader();
        header.setProducerGroup(request.getString("group"));
        header.setTranStateTableOffset(request.getLong("queueOffset"));
        header.setCommitLogOffset(request.getLong("commitLogOffset"));
        header.setCommitOrRollback(request.getInteger("state"));
        header.setFromTransactionCheck(request.getBooleanValue("fromCheck"));
        header.setMsgId(request.getString("msgId"));
        RemotingCommand command = RemotingCommand.createRequestCommand(RequestCode.END_TRANSACTION, header);
        RemotingCommand answer = producer.getDefaultMQProducerImpl().getmQClientFactory().getMQClientAPIImpl()
            .getRemotingClient().invokeSync(request.getString("broker"), command, TIMEOUT_MS);
        Map<String, Object> fields = new HashMap<>();
        fields.put("code", answer.getCode());
        fields.put("remark", answer.getRemark());
        return fields;
    }

    /** Fields: client (an admin), offsetMsgId. Resume the checks of a half message. */
    Object resume(JSONObject request) throws Exception {
        DefaultMQAdminExt admin = clients.get(request, DefaultMQAdminExt.class);
        return Versions.resumeCheckHalfMessage(admin, request.getString("offsetMsgId"));
    }
}
